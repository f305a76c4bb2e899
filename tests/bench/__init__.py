"""The benchmark: this project beside what people would pick instead, on the same data, in one run.

    ./run bench                 every row, then growth; a table with a verdict a row; raw numbers in build/bench.json
    ./run bench 4 8 growth      only those, and what belongs to them ("4 busy" is that one alone)
    ./run bench growth --huge   to 100 million messages: 50 GB of disk
    ./run bench query --huge    questions to 100 million messages as well: 50 GB of disk
    ./run bench width           stores of 100, 2,000 and 20,000 topics, a run of its own; `--topics 20 100 500` others
    ./run bench fleet           one host's server beside its mount, a run of its own; `loss` is its last part
    ./run bench --quick         smaller counts, the same work: for a busy machine or a first look
    ./run bench spark           Spark over a mount (its own table, in docs/spark.md)
    ./run bench --docs          afterwards, write table and plot into docs/performance.md

The two sides of a row take turns, and its ratio is the median of the rounds' own ratios: what slows the whole machine
down for a while slows both.
"""
