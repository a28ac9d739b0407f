"""What runs inside the sandbox. Standard library alone: nothing else of this project is visible there."""
