"""What a run would do, found out without running anything, with what it brings and costs."""
