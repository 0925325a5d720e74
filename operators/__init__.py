"""What is computed: tree nodes, views, pad policy, one file per operator, float64 references."""
