"""From one layout to another: the plan, what it costs, and how it is carried out."""
