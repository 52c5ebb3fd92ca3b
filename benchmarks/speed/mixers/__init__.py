"""The parts of `python -m benchmarks.speed mixers`; families/mixers.py puts them together.

operators.py    the operators alone, by length         strong.py     the same under strong decays
blocks.py       whole mixers beside transformers'      experts.py    a mixture of experts beside dense layers
decoding.py     one token at a time, after 1k to 64k   fla_naive.py  fla's plain operators, from their files
generation.py   a Mamba model that writes text
"""
