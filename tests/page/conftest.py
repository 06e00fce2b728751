"""Headless Chromium, one window per test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """A window of 1280 by 860. It fails the test when the page logs an error."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1280,947",
        f"--user-data-dir={tmp_path}",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
        errors = [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        assert not [entry for entry in errors if "401" not in entry["message"]], errors
        loaded = driver.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        origin = driver.execute_script("return location.origin")
        assert all(name.startswith(origin) for name in loaded), loaded
    finally:
        driver.quit()
