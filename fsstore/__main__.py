"""`python -m fsstore` is `mountctl`: what people install has another name than its command."""

import runpy

runpy.run_module("mountctl", run_name="__main__")
