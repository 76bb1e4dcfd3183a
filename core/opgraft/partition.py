def partition(node_count, edges, supported):
    return [sorted(supported)]
