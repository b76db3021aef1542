"""The catalog in a real browser: what a test client cannot see. `pytest -m browser tests/browser` runs it.

chromium     finds and starts the browser of this machine; nothing is downloaded
page_monitor what a page must never do: complain, ask elsewhere, open a dialog, move about
sites        the catalogs under test, each behind the real server
screenshots  the pictures of the documentation: `python -m tests.browser.screenshots`
"""
