"""Tensors of torch: conversion, memory, random numbers, precision.

Imports no other room.
"""
