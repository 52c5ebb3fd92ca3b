"""The report: every row of the suites as one Parquet file, tables, figures and one page.

    python -m benchmarks.report [rows=FOLDER] [out=FOLDER]

rows    where rows lie, <size>/<suite>.jsonl (benchmarks/results/suites)
out     where the report goes (benchmarks/results/report): results.parquet, tables/*.md, figures/*.png and *.svg,
        index.html, which needs no other file and no network

rows.py reads; comparisons.py says what may be compared with what; views.py makes the tables, figures.py the figures;
claim.py and claims.py hold known results against the rows; page.py and page/ are the page. Nothing knows the name of
an arm but claims.py and the reference of comparisons.py, so a mixer of one's own is shown like any other.
"""
