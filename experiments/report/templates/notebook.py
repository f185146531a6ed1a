"""The report's notebook, cell by cell; `experiments.report.notebook` fills in the parameters."""

# %% [markdown]
# # $title
#
# Every sentence, table and figure below is computed from the runs in the folder `RUNS`. To see
# those of other runs, change it and run all cells again. Tables (`.csv`, `.md`, `.tex`) and
# figures (`.png`, `.svg`) are written beside this notebook.

# %%
from experiments.report.data import Study
from experiments.report.display import show
from experiments.report.sections import (
    accuracy,
    learning_rates,
    networks,
    overview,
    performance_profiles,
    scaling,
    time_to_accuracy,
    timeline,
    traffic,
)

# %% parameters
RUNS = "results/runs"

# %%
study = Study.load(RUNS)
show(overview.overview(study))

# %% [markdown]
# ## Time to accuracy

# %%
show(time_to_accuracy.time_to_accuracy(study))

# %% [markdown]
# ## Accuracy over time, steps and bytes

# %%
show(accuracy.curves(study))

# %% [markdown]
# ## Accuracy in the end

# %%
show(accuracy.final_accuracy(study))

# %% [markdown]
# ## Learning rates

# %%
show(learning_rates.learning_rates(study))

# %% [markdown]
# ## Bytes

# %%
show(traffic.bytes_sent(study))

# %% [markdown]
# ## Exposed communication

# %%
show(traffic.exposed_communication(study))

# %% [markdown]
# ## The best algorithm over networks

# %%
show(networks.best_over_networks(study))

# %% [markdown]
# ## Scaling

# %%
show(scaling.scaling(study))

# %% [markdown]
# ## Performance profile

# %%
show(performance_profiles.performance_profile(study))

# %% [markdown]
# ## A step

# %%
show(timeline.timeline(study))

# %% [markdown]
# ## What did not complete

# %%
show(overview.incomplete(study))
