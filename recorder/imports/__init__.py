"""What others recorded, a module for each format: each reads a file into calls, one in memory at a time."""
