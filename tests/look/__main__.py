"""`./run look`: opens each view of the page in Chromium, over a shop's store and a hostile publisher's topics.

Exit code 0: all is as it should be; 1: something is not; 75: there is no Chromium here.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import sync_playwright

from fsstore.fleet.places import FLEET_FILE
from tests.look.looks import LOOKS, Looker
from tests.look.stores import make
from tests.mountctl.conftest import site_in
from tests.mountctl.served import CERTIFICATES, FIRST_TOKEN, served, tokens_in

PROJECT = Path(__file__).parents[2]
NOT_AVAILABLE = 75


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run look", description=__doc__)
    parser.add_argument("--pictures", action="store_true", help="keep the pictures in docs/")
    parser.add_argument("--messages", type=int, default=200_000, metavar="N", help="orders in the store (200,000)")
    parser.add_argument("looks", nargs="*", metavar="LOOK", help=f"these alone: {', '.join(LOOKS)}")
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("there is no Chromium here")
        return NOT_AVAILABLE
    failed = 0
    with TemporaryDirectory() as folder, ExitStack() as stack:
        (Path(folder) / "second").mkdir()
        for site, second in zip(site_in(Path(folder)), site_in(Path(folder) / "second"), strict=True):
            began = time.monotonic()
            make(site.store, options.messages)
            site.mounted()
            make(second.store, options.messages // 10)
            second.mounted()
            print(f"made a store of {options.messages:,} orders ({time.monotonic() - began:.0f} s)", flush=True)
            tokens = tokens_in(Path(folder) / "tokens", ann=FIRST_TOKEN)
            other = stack.enter_context(served(second.mountpoint, Path(folder) / "second"))
            fleet_of(Path(folder), f'broker-a = "{site.mountpoint}"\nbroker-b = "{other.origin}"\n')
            secure = "--tokens", tokens, "--certificate", CERTIFICATES / "server.pem"
            server = stack.enter_context(served(site.mountpoint, Path(folder), *secure, "--fleet", "@shop"))
            playwright = stack.enter_context(sync_playwright())
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            looker = Looker(browser, server, site.mountpoint, PROJECT / "docs" if options.pictures else None)
            for name in options.looks or LOOKS:
                failed += not succeeds(looker, name)
            browser.close()
            stack.close()
    return 1 if failed else 0


def fleet_of(home: Path, places: str) -> None:
    """Give this process, and those that it starts, a home with the group `shop` in its fleet file."""
    config = home / FLEET_FILE.relative_to("~")
    config.parent.mkdir(parents=True)
    config.write_text(f"[shop]\n{places}")
    os.environ["HOME"] = str(home)


def succeeds(looker: Looker, name: str) -> bool:
    """Whether the look of that name finds all as it should be."""
    began = time.monotonic()
    try:
        LOOKS[name](looker)
    except Exception:
        traceback.print_exc(limit=-4)
        print(f"FAILED {name}", flush=True)
        return False
    print(f"ok     {name} ({time.monotonic() - began:.1f} s)", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
