"""What is done with a tree: feasibility, execution against float64, emission; the compiler in a child process."""
