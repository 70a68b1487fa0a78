"""The engines: each turns the rows of partitions into matches. `choose` picks one, `engine` defines their interface."""
