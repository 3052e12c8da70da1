"""Benchmarks: ours and its peers under the same load, in the same run, as a ratio.

`python -m bench` runs them all. Every module named in `__main__.BENCHMARKS` measures one figure and returns one JSON
object; `peers` starts and stops the relays, `load` is the client that loads them, `events` signs what it sends,
`report` judges. One relay works at a time, rounds are interleaved, medians decide.
"""
