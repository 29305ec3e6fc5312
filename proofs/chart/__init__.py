"""The Helm chart, tried without a cluster: `make chart-check`; deploy/k8s is made here, too.

helm         Helm as a library; cluster: what it installs into, and which only writes down
rendering    a chart with values, as the objects that would reach a cluster
judging      these objects against schemas, Prometheus and our own rules
manifests    the same objects as plain files; values: the table of the chart's values
"""
