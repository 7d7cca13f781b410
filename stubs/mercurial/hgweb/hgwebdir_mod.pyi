from .hgwebdir_mod_inner import hgwebdir as hgwebdir
