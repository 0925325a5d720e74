"""Search from a start that is trusted: rounds of a few knobs each, adopted only where they are strictly faster."""
