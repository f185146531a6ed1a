"""Measurements by the workers themselves: is the network what was asked for?"""
