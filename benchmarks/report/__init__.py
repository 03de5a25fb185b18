"""Reading results, as `mpicoll report`: tables, comparisons, one page, pictures.

model.py            a row, a run, and what belongs in one picture
errors.py           what is wrong with a file
read.py             which reader a file is for, told from what is in it
lines.py            `mpicoll bench --json`: JSON lines of schema 2
osu.py, imb.py      the text that the OSU micro-benchmarks and Intel's IMB print
modelled.py         a run whose times are the cost model's
fixed.py            the fixed rules that its choice is compared with
groups.py           rows of all files, gathered into what one table or picture shows
terminal.py         the tables
compare.py          two runs, row by row: tests and intervals
difference.py       what a comparison shows, and where the runs' environments differ
look.py             each contender's colour, the same everywhere
charts.py, maps.py  curves and scaling; which algorithm is best where, and what another costs
page.py             report.html, with page.html.j2, page.css and page.js
pictures.py         PNG and SVG files
cli.py              `mpicoll report`
"""
