"""What was said, exactly: wire bytes -> canonical messages -> a database."""
