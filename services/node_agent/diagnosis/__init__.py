"""The evidence of a diagnosis on this node: collectors, bounded in time, that never touch a device.

`collecting.py` joins them, `answers.py` answers gateways, `watch.py` reports jobs without progress.
The verdict is the gateway's (`libs/common/diagnosis/rules.py`). For users: docs/diagnose.md.
"""
