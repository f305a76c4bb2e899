"""Looks at the page of `mountctl serve` in a real Chromium, which only this command needs."""
