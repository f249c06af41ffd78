//! `aime`: the format of DAPO and its normaliser.
