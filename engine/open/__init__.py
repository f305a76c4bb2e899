"""Ways into a store: opened to write, to read or to follow, recovered, checked."""
