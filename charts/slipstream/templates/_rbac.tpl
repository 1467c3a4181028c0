{{/* Permissions of the gateway in the namespaces of pairs: read-only. */}}
{{- define "slipstream.gatewayRules" -}}
- apiGroups: [slipstream.dev]
  resources: [modelpairs, speculationpolicies]
  verbs: [get, list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
{{- end -}}

{{/* Permissions of the gateway in the release's namespace: to renew its report, a Lease per process. */}}
{{- define "slipstream.gatewayReportRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create, patch, delete]
{{- if .Values.gateway.admin.mayKill }}
{{- /* The console confirms a kill by the reports of the other gateways. */}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [list, watch]
{{- end }}
{{- end -}}

{{/* Permission for the console's kill switch in the namespaces of pairs. */}}
{{- define "slipstream.gatewayKillRules" -}}
- apiGroups: [slipstream.dev]
  resources: [modelpairs]
  verbs: [patch]
{{- end -}}

{{/* Permissions of the operator in the namespaces of pairs. It writes status and children, never a parent's spec. */}}
{{- define "slipstream.operatorRules" -}}
- apiGroups: [slipstream.dev]
  resources: [modelpairs, speculationpolicies]
  verbs: [get, list, watch]
- apiGroups: [slipstream.dev]
  resources: [modelpairs/status, speculationpolicies/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
{{- /* A Lease records the release that manages a namespace. Kubernetes cannot restrict creation by name. */}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [slipstream-release]
  verbs: [get, update]
{{- end -}}

{{/* Permissions of the operator in the release's namespace: to read the gateways' reports, and to hold its own Lease. */}}
{{- define "slipstream.operatorReportRules" -}}
{{- /* It deletes reports of gateways that have been dead for an hour. */}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [list, watch, delete]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "slipstream.fullname" . }}-operator]
  verbs: [get, update]
{{- end -}}

{{/* Permissions of a person for `slipstream kill` and for kubectl patch. */}}
{{- define "slipstream.killRules" -}}
- apiGroups: [slipstream.dev]
  resources: [modelpairs, speculationpolicies]
  verbs: [get, list, watch, patch]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch]
{{- end -}}

{{/*
A role of a component and what binds it, in a namespace or (namespace "") in the whole cluster:
(dict "root" $ "component" "gateway" "namespace" "team-a" "suffix" "" "rules" "slipstream.gatewayRules").
*/}}
{{- define "slipstream.boundRole" -}}
{{- $kind := ternary "Role" "ClusterRole" (ne .namespace "") -}}
{{- $base := ternary (include "slipstream.fullname" .root) (include "slipstream.clusterName" .root) (eq .namespace .root.Release.Namespace) -}}
{{- $name := printf "%s-%s%s" $base .component .suffix -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  name: {{ $name | quote }}
  {{- with .namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels:
    {{- include "slipstream.labels" . | nindent 4 }}
rules:
  {{- include .rules .root | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ $name | quote }}
  {{- with .namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels:
    {{- include "slipstream.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ $name | quote }}
subjects:
  - kind: ServiceAccount
    name: {{ include "slipstream.serviceAccountName" . | quote }}
    namespace: {{ .root.Release.Namespace | quote }}
{{ end -}}
