"""Published forms of what the verbs print with `--json`; `sim.files.schema` makes JSON Schemas of them.

Keys end in their unit where they carry one: `_s` seconds, `_bytes` bytes; shares are of one.
"""
