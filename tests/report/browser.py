"""What a person does in a browser, by the texts that are on the page."""

import json
from pathlib import Path
from typing import Any

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
WAIT = 20.0
"""Seconds until a test gives up waiting for the page."""


def start(profile: Path) -> Any:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


class Browser:
    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def reset(self) -> None:
        self.driver.get("about:blank")
        self.window(1280, 900)
        self.errors()

    def window(self, width: int, height: int, scheme: str = "light") -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        # Without motion, what is scrolled to can be clicked at once.
        wished = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wished.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, address: str) -> None:
        self.driver.get(address)
        self.until("document.documentElement.dataset.ready === 'yes'")

    def until(self, condition: str) -> Any:
        """Wait until a JavaScript expression is true, and return its value."""
        from selenium.webdriver.support.wait import WebDriverWait

        return WebDriverWait(self.driver, WAIT, 0.02).until(lambda _: self.ask(condition))

    def ask(self, expression: str) -> Any:
        return self.driver.execute_script(f"return ({expression})")

    def text(self, selector: str) -> str:
        """The text of the first element there; the page's own, whether in sight or not."""
        found = json.dumps(selector)
        return self.until(f"document.querySelector({found})?.textContent")

    def texts(self, selector: str) -> list[str]:
        found = json.dumps(selector)
        return self.ask(f"[...document.querySelectorAll({found})].map((e) => e.textContent)")

    def choose(self, name: str, value: str) -> None:
        """Set a filter as a person does."""
        field = self.driver.find_element("css selector", f"[data-filter='{name}']")
        if field.tag_name == "select":
            field.find_element("css selector", f"option[value='{value}']").click()
        else:
            field.clear()
            field.send_keys(value)

    def click(self, selector: str, text: str = "") -> None:
        for element in self.driver.find_elements("css selector", selector):
            if text in element.text:
                return element.click()
        raise AssertionError(f"there is no {selector} with {text!r}")

    def overflows(self) -> bool:
        """Whether the page is wider than the window."""
        return self.ask("document.documentElement.scrollWidth > window.innerWidth")

    def errors(self) -> list[str]:
        """What the console has complained of since it was last asked."""
        return [entry["message"] for entry in self.driver.get_log("browser")]
