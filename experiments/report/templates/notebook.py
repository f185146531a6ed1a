"""The first cells of a report's notebook; `experiments.report.notebook` fills in the parameters,
and adds the cells of every section.
"""

# %% [markdown]
# # $title
#
# Every sentence, table and figure below is computed from the runs in the folder `RUNS`. To see
# those of other runs, change it and run all cells again. Tables (`.csv`, `.md`, `.tex`) and
# figures (`.png`, `.svg`) are written beside this notebook.

# %%
from experiments.report.data import ReportData

# %% parameters
RUNS = "results/runs"

# %%
data = ReportData.load(RUNS)
