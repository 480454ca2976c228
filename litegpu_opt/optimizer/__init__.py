"""Search, polish, certify: the geometric program and everything that is read off it."""
