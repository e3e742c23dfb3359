"""What happened to the context: threads, edits, lifetimes, the tree."""
