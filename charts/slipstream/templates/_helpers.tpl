{{/*
A name of at most 46 characters, so that the longest suffix of this chart still fits into a DNS label of 63. A longer
name is cut and ends with a hash of the whole, so that two long release names never result in the same name.
*/}}
{{- define "slipstream.shorten" -}}
{{- if gt (len .) 46 -}}
{{- printf "%s-%s" (. | trunc 37 | trimSuffix "-") (. | sha256sum | trunc 8) -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{/* A number as it is written: Helm reads all numbers as floats, and prints 1000000 as 1e+06. */}}
{{- define "slipstream.number" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) -}}
{{- int64 . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- include "slipstream.shorten" .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- include "slipstream.shorten" .Release.Name -}}
{{- else -}}
{{- include "slipstream.shorten" (printf "%s-%s" .Release.Name $name) -}}
{{- end -}}
{{- end -}}

{{/* Names of cluster-scoped objects contain the release's namespace, so that releases do not collide. */}}
{{- define "slipstream.clusterName" -}}
{{- /* `helm lint` has no namespace. */ -}}
{{- include "slipstream.shorten" (printf "%s-%s" .Release.Namespace (include "slipstream.fullname" .) | trimPrefix "-") -}}
{{- end -}}

{{/*
Selector labels of a component: (dict "root" $ "component" "gateway").
*/}}
{{- define "slipstream.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/*
Labels of a component's objects. No app.kubernetes.io/part-of: EndpointSlices inherit a Service's labels, and that one
is how gateways find the slices of pairs.
*/}}
{{- define "slipstream.labels" -}}
{{ include "slipstream.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with omit .root.Values.commonLabels "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
Labels of a component's pods. They exclude the chart's version, so that an upgrade without other changes restarts no
pods: (dict "root" $ "component" "gateway" "extra" .podLabels).
*/}}
{{- define "slipstream.podLabels" -}}
{{- toYaml (merge (include "slipstream.selector" . | fromYaml) (deepCopy .root.Values.commonLabels) (deepCopy (default dict .extra))) -}}
{{- end -}}

{{/* An image reference from {repository, tag, digest}; the digest takes precedence. */}}
{{- define "slipstream.image" -}}
{{- $tag := .image.tag | default .root.Chart.AppVersion -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository $tag -}}
{{- end -}}
{{- end -}}

{{/* Name of the ServiceAccount of "gateway" or "operator". */}}
{{- define "slipstream.serviceAccountName" -}}
{{- $account := (index .root.Values .component).serviceAccount -}}
{{- if $account.create -}}
{{- default (printf "%s-%s" (include "slipstream.fullname" .root) .component) $account.name -}}
{{- else -}}
{{- required (printf "%s.serviceAccount.name is required if %s.serviceAccount.create is false" .component .component) $account.name -}}
{{- end -}}
{{- end -}}

{{/* The container half of pod security "restricted". */}}
{{- define "slipstream.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The pod half of pod security "restricted"; the argument is the user id. */}}
{{- define "slipstream.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Scheduling of a component's pods, as far as it is set in the values. */}}
{{- define "slipstream.scheduling" -}}
{{- with .priorityClassName -}}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The namespaces whose pairs are served, as a list in JSON; [""] is the whole cluster. */}}
{{- define "slipstream.watched" -}}
{{- $named := .Values.watchNamespaces | uniq -}}
{{- if has "*" $named -}}
{{- list "" | toJson -}}
{{- else -}}
{{- default (list .Release.Namespace) $named | toJson -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.isClusterWide" -}}
{{- if has "*" .Values.watchNamespaces -}}true{{- end -}}
{{- end -}}

{{- define "slipstream.hasGrants" -}}
{{- if or .Values.grants.apiKeys .Values.grants.modelNames -}}true{{- end -}}
{{- end -}}

{{/*
An upgrade from a version whose default was the whole cluster must not leave its pairs unserved: a running operator
without --namespace serves all of them.
*/}}
{{- define "slipstream.checkNarrowing" -}}
{{- if and .Release.IsUpgrade (not .Values.watchNamespaces) -}}
{{- $name := printf "%s-operator" (include "slipstream.fullname" .) -}}
{{- $running := lookup "apps/v1" "Deployment" .Release.Namespace $name -}}
{{- if $running -}}
{{- $arguments := (first $running.spec.template.spec.containers).args | join " " -}}
{{- if not (contains "--namespace=" $arguments) -}}
{{- fail (printf "watchNamespaces: this release serves the pairs of all namespaces so far, and would serve only those of %s: list the namespaces, or set {*} for all of them" .Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Values of version 0.2 that are gone; those of the others that are gone have no effect: "deprecated" in the schema. */}}
{{- define "slipstream.checkRemoved" -}}
{{- if gt (int .Values.gateway.workers) 1 -}}
{{- fail (printf "gateway.workers: a pod is one gateway since 0.3; remove the value, and multiply gateway.replicas (with autoscaling its minReplicas and maxReplicas) by %d" (int .Values.gateway.workers)) -}}
{{- end -}}
{{- end -}}

{{/* Contradictions that a JSON schema cannot express. */}}
{{- define "slipstream.check" -}}
{{- if and .Values.redis.url .Values.redis.existingSecret.name -}}
{{- fail "redis: set url or existingSecret.name, not both" -}}
{{- end -}}
{{- if and (has "*" .Values.watchNamespaces) (gt (len .Values.watchNamespaces) 1) -}}
{{- fail "watchNamespaces: \"*\" means all namespaces and must be the only entry" -}}
{{- end -}}
{{- include "slipstream.checkNarrowing" . -}}
{{- include "slipstream.checkRemoved" . -}}
{{- if not (or .Values.gateway.auth.existingSecret.name .Values.gateway.auth.allowAnonymous) -}}
{{- fail "gateway.auth: set existingSecret.name to a Secret with API keys, or allowAnonymous=true to permit requests without keys" -}}
{{- end -}}
{{- if and .Values.gateway.admin.mayKill (not .Values.gateway.auth.existingSecret.name) -}}
{{- fail "gateway.admin.mayKill: requires API keys (auth.existingSecret.name), otherwise every client could stop speculation" -}}
{{- end -}}
{{- if and .Values.gateway.extProc.enabled (eq (int .Values.gateway.extProc.port) (int .Values.gateway.admin.port)) -}}
{{- fail (printf "gateway.extProc.port: %d is the port of gateway.admin, too" (int .Values.gateway.extProc.port)) -}}
{{- end -}}
{{- $autoscaling := .Values.gateway.autoscaling -}}
{{- if and $autoscaling.enabled (lt (int $autoscaling.maxReplicas) (int $autoscaling.minReplicas)) -}}
{{- fail (printf "gateway.autoscaling: maxReplicas %d is below minReplicas %d" (int $autoscaling.maxReplicas) (int $autoscaling.minReplicas)) -}}
{{- end -}}
{{- if and .Values.gateway.httpRoute.enabled (not .Values.gateway.httpRoute.parentRefs) -}}
{{- fail "gateway.httpRoute.parentRefs: is required; set it to the parent Gateway of the route" -}}
{{- end -}}
{{- end -}}
