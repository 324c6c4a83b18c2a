"""The dray app behind Django's tasks. Its broker: DRAY_BROKER_URL, or a file below this folder."""

from dray import App

app = App("shop")
