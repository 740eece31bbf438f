"""Result files of other benchmark tools as rows of a grid: one file per tool."""
