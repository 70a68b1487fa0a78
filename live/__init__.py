"""Events as they arrive: what is taken in, in which form, how late it is, and how far time has come."""
