"""`make bench`: promises about speed, as ratios within one run, beside their budgets (design section 11)."""
