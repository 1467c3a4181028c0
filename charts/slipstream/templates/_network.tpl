{{/*
Permitted clients of pairs' servers, in JSON: the gateways of this release, and scrapers. The operator creates the
NetworkPolicies in the namespaces of the pairs.
*/}}
{{- define "slipstream.serverIngress" -}}
{{- $home := dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace) -}}
{{- $gateways := include "slipstream.selector" (dict "root" . "component" "gateway") | fromYaml -}}
{{- $peer := dict "namespaceSelector" $home "podSelector" (dict "matchLabels" $gateways) -}}
{{- $rules := list (dict "from" (list $peer) "ports" (list (dict "protocol" "TCP" "port" 8001))) -}}
{{- with .Values.networkPolicy.servers.metricsFrom -}}
{{- $rules = append $rules (dict "from" . "ports" (list (dict "protocol" "TCP" "port" 8002))) -}}
{{- end -}}
{{- toJson $rules -}}
{{- end -}}

{{/* Egress of gateway and operator: DNS, the API server, Redis. */}}
{{- define "slipstream.commonEgress" -}}
{{- $policy := .Values.networkPolicy -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
  {{- with $policy.dnsPodLabels }}
  to:
    - namespaceSelector: {}
      podSelector:
        matchLabels:
          {{- toYaml . | nindent 10 }}
  {{- end }}
{{- /* No selector matches the API server: it has a node's address, which only the cluster's owner knows. */}}
- ports:
    {{- range $policy.apiServer.ports }}
    - {protocol: TCP, port: {{ include "slipstream.number" . }}}
    {{- end }}
  {{- with $policy.apiServer.cidrs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  {{- end }}
{{- if include "slipstream.ownRedis" . }}
- to:
    - podSelector:
        matchLabels:
          {{- include "slipstream.selector" (dict "root" . "component" "redis") | nindent 10 }}
  ports:
    - {protocol: TCP, port: 6379}
{{- else if eq (include "slipstream.hasRedis" .) "true" }}
- ports:
    {{- range $policy.redis.ports }}
    - {protocol: TCP, port: {{ include "slipstream.number" . }}}
    {{- end }}
  {{- with $policy.redis.cidrs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  {{- end }}
{{- end }}
{{- end -}}
