"""The training side of the zoo: what each task loads, minimises, measures and draws, and the loop that runs it.

Nothing is imported here; `recipes.launch` reads a recipe by name, and Lightning is loaded when training starts.
"""
