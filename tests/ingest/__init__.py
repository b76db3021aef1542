"""From paths to rows."""
