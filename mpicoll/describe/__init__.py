"""Show algorithms: pictures, formulas, the catalogue and the generated pages. Needs no MPI."""
