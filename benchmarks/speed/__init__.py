"""Speed and memory against other implementations: `python -m benchmarks.speed model=vit`, see options.HELP.

measure.py   alternating times, ratios and their spread        run.py      one case, from arms to rows
memory.py    peak memory, in a child process                   report.py   the table and the JSON
arms.py      what a case, a peer and a target are              families/   one file a family
"""
