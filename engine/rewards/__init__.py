"""Scores of completions: the graders, and the processes they run in."""
