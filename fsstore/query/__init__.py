"""Questions about messages: which ones (`where`), how many and when (`hist`), with which fields (`fields`)."""
