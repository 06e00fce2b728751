"""Bad requests by the thousand, against a real server: `make fuzz-quick`."""
