"""Tensors of torch: conversion, memory, random numbers, precision; calls by address.

Imports no other room.
"""
