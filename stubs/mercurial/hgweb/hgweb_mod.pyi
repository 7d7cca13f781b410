from .hgweb_mod_inner import hgweb as hgweb
