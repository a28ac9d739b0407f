"""The doctor: names a sick run in plain words and says what to try. Pure: it sees what a job knows and does nothing.

Invariants: a finding is said once when it begins, again only when it got markedly worse, and once more, as ``info``,
when it is over; a doctor restored from its state says what it would have said without the interruption; observing a
committed step or an evaluation again changes nothing; a healthy run, however noisy, gets no warning.
"""

from engine.doctor.doctor import Doctor

__all__ = ["Doctor"]
