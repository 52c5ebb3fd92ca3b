"""Recorded episodes of environments: scripted controllers' and any local minari data set."""
