"""Where operations live: a small contract, and SQLite behind it."""
