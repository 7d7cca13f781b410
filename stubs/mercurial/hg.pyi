from .localrepo import localrepository

# (name of the repository's attribute that holds the folder, file in it): what tells hgweb that a repository changed
foi: list[tuple[str, bytes]]

class cachedlocalrepo:
    _repo: localrepository

def verify(repo: localrepository, level: int | None = None) -> int: ...
