"""The page for people: HTML that is made here, of the store beside the mount and the mount's own status (docs/page.md).

Plain links and forms; a script adds the live tail and keys. Nothing of a publisher is markup: templates escape all.
"""
